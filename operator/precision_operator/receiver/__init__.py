"""The server that Alertmanager posts alerts to: its tokens, its connections, its bounds. It may import settings, runtime
and api; what an alert means to the fleet is decided in the controller.
"""
