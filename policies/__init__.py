"""Leaf room: may this happen? Engines behind one port; anything but a well-formed verdict is a refusal."""
