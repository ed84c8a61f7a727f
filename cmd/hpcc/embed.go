//go:build entry

package main

import _ "embed"

// embeddedEntry is the program for images (cmd/start) for this machine.
//
//go:embed entry.bin
var embeddedEntry string
