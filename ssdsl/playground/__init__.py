"""The compiler behind the playground's page: what it answers about a plan, and what the page knows before it asks."""
