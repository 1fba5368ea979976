"""Stand-ins for what only a production system has: its images, wheels, modules, registry and hardware."""
