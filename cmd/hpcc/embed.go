//go:build entry

package main

import _ "embed"

// embeddedEntry is the entry point program for images (cmd/start), for this machine's architecture.
//
//go:embed entry.bin
var embeddedEntry string
