"""Bare-metal GPU hosts to a production LLM service, with pyinfra."""
