"""The rows of the requirements through the whole gateway: real processes, real sockets, the files that they leave.

Every refusal is held to the same proof (`proof.py`): its status, code and reason, a server behind that was not asked,
one record that says why, no secret anywhere, and a next request that works. What a single room does with stranger
input is in that room's own tests.
"""
