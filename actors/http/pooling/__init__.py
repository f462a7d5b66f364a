"""Routes of models that embed and classify: OpenAI's embeddings, vLLM's pooling and classes, scores and reranking.

Reranking has the shapes of Cohere's and Jina's clients.
"""
