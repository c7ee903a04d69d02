"""The house: a governed corridor between MCP clients and unmodified MCP servers."""
