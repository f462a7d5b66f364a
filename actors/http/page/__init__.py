"""The web page of a server: a chat, and the actors at work.

- `static` has the page itself: HTML, CSS and JavaScript modules, which a browser takes as they are.
- `files` are these as HTTP responses.
- `feed` observes the engine for everybody who looks.
- `routes` are the page's routes.
"""
