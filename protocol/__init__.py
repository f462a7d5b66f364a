"""What actors say to each other. Depends on msgspec and numpy, and on nothing else of the project.

One module per conversation, each opening with who says what to whom, and when; `message`, `arrays`,
`envelope` and `codec` are what messages are made of and how they travel; `roles` says who must
understand what.
"""
