"""What the testbed installs below its directory: EasyBuild, the test tools, and a container runtime."""
