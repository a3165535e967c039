"""The MCP server at /mcp: the read API, acknowledgements and silences as tools for assistants."""
