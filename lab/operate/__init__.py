"""What people operate with, measured: alerts, rules, dashboards, messages and the page of the fleet."""
