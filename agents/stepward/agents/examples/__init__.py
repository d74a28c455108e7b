"""Examples to copy from: a trip that is booked step by step, and the travel service that it books with.

Read `trip` first: its definition is `trip.yaml` beside it, an input is `trip.json`. `travel_client` is how its handlers
call the service and what they make of an answer that does not come. `travel_service` is the outside world: a process of
its own with `bookings` (its rules, pure) and `ledger` (its record of every call). `travel_record` judges such a record:
was anything booked twice, was anything left booked for a trip that did not take place?
"""
