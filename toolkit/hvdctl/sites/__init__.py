"""The sites that nodes come from: one module a provider, each with what `providers.Site` asks for."""
