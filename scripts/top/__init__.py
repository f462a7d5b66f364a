"""`pageant top`: what a running server does, between two looks at it."""
