"""The public contract of stepward, generated from the .proto files beside this one."""
