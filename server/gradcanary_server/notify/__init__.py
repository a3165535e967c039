"""Notifications: their policy, endpoints, outbox and delivery."""
