"""Authentication and authorization of requests: tokens, sign-in, scopes and rate limits."""
