"""What holds for each test of the agent."""

from support.agent.fixtures import no_watch_is_left, nothing_waits_to_be_collected, phases_of_the_table

__all__ = ["no_watch_is_left", "nothing_waits_to_be_collected", "phases_of_the_table"]
