"""The pages: a frame that stays, and the contents that a refresh fills into its slots."""
