"""Messages of agents: checked, stored and evaluated, each in one transaction."""
