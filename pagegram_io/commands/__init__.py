"""The commands of pagegram-io, one file each; each file's ``command`` is what the command line runs."""
