"""An order that is fulfilled: stock is reserved, the card charged, the parcel shipped, the customer told.

Reading order: `order.yaml` (the definition; `definition` is the same in Python), `agent` (the handlers), `shop` (the
rules of the outside world, pure), `shop_service` (that world as a process), `shop_record` (judges what it recorded).
`order.json` is an input.
"""
