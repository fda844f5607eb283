//! Anthropic and Gemini wire formats to and from OpenAI's. No I/O.
