"""Examples to copy from. Each has an agent, a definition, and an outside world that can be told to misbehave.

Three of them, each with a page in docs/ and a show in `stepward demo`:

- `trip`: a trip that is booked step by step, and cancelled again in reverse order. Read it first: its definition is
  `trip.yaml` beside it, an input is `trip.json`. `travel_client` is how its handlers call the travel service,
  `travel_service` that service, with `bookings` (its rules, pure); `travel_record` judges its record.
- `machines`: a machine that is provisioned, with a long step that goes on where the attempt before it was, and an undo
  that needs a person.
- `orders`: an order that is fulfilled, with a payment service that cannot be asked twice and whose silence may hide a
  charge.

`http_service` and `http_call` are the two ends of every call that a handler makes, `ledger` is the record that a
service keeps of them.
"""
