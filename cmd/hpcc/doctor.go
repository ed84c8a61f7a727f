package main

import (
	"encoding/json"
	"fmt"
	"os"

	"github.com/urfave/cli/v2"

	"hpcc/runtime"
)

func doctorCommand() *cli.Command {
	return &cli.Command{
		Name: "doctor", Usage: "say what this host allows, why not, and whom to ask",
		Flags: []cli.Flag{&cli.BoolFlag{Name: "json", Usage: "one JSON object a line"}},
		Action: func(c *cli.Context) error {
			bad := false
			enc := json.NewEncoder(os.Stdout)
			for _, f := range runtime.Probe() {
				bad = bad || !f.OK
				if c.Bool("json") {
					if err := enc.Encode(map[string]any{"type": "feature", "name": f.Name, "ok": f.OK, "why": f.Why, "cure": f.Cure}); err != nil {
						return err
					}
					continue
				}
				if f.OK {
					fmt.Printf("ok    %s\n", f.Name)
				} else {
					fmt.Printf("no    %s: %s\n      %s\n", f.Name, f.Why, f.Cure)
				}
			}
			if bad {
				return exitStatus(exitFailure)
			}
			return nil
		},
	}
}
