"""Level 7: the HTTP surface, OpenAI's and Ollama's, one file an endpoint family."""
