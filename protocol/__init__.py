"""Messages that actors exchange. Depends on msgspec and numpy, and on nothing else of the project.

Each conversation has a module, which opens with its messages, their senders and their receivers. `message`,
`arrays`, `envelope` and `codec` define what a message is and how it travels. `roles` lists the messages that
each role must handle.
"""
