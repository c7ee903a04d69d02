"""Leaf room: has a person said yes to exactly this? Tickets, their uses, and the desk that settles them."""
