"""`pageant run-batch`: files of requests as OpenAI's batch API has them, answered by a server."""
