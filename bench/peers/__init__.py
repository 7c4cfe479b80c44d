"""The peers: the small GPT trained by programs that others would write, or by the libraries that others would use."""
