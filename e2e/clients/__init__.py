"""Clients as people use them, through both planes to a real engine."""
