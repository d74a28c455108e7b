"""Rows on disk and in memory; the only importer of lmdb. Reading order: `interface`, `memory`, `lmdb_store`, `live`.

`errors` holds the root of all exceptions of the server.
"""
