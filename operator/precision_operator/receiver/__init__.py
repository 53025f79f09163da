"""The server that Alertmanager posts alerts to: its tokens, its connections, its bounds. What an alert means to
the fleet is decided in the controller.
"""
