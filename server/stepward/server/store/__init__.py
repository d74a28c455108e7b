"""Rows on disk and in memory; the only importer of lmdb.

Reading order: `interface`, `memory`, `environment`, `lmdb_reading`, `write_ahead`, `lmdb_store`, `incoming`, `live`.
`lock` keeps a second process out, `facts` are what stands beside the rows. `errors` holds the root of all exceptions of
the server.
"""
