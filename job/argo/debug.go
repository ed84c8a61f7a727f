package argo

import (
	"fmt"
	"slices"

	"go.yaml.in/yaml/v3"

	"hpcc/job"
)

// Debug makes the Python programs of a workflow wait for a debugger. It returns the names of the
// templates that run them.
func (w *File) Debug() ([]string, error) {
	var names []string
	for _, t := range w.root.items("spec", "templates") {
		c := t.at("container")
		if c == nil {
			continue
		}
		var argv []string
		for _, list := range []string{"command", "args"} {
			for _, a := range c.items(list) {
				argv = append(argv, a.text())
			}
		}
		argv, err := job.DebugArgv(argv)
		if err != nil {
			continue
		}
		c.set("command", listItem(argv[:1]))
		c.set("args", listItem(argv[1:]))
		ports := &item{shape: yaml.SequenceNode, list: c.items("ports")}
		if !slices.ContainsFunc(ports.list, func(p *item) bool { return p.text("name") == job.DebugPort.Name }) {
			port := &item{shape: yaml.MappingNode}
			port.set("name", scalarItem(job.DebugPort.Name))
			port.set("containerPort", scalarItem(job.DebugPort.Number))
			ports.list = append(ports.list, port)
			c.set("ports", ports)
		}
		names = append(names, t.text("name"))
	}
	if len(names) == 0 {
		return nil, fmt.Errorf("--debug: no template of %s has a container that runs Python, and hpcc only supports debugpy", w.what())
	}
	return names, nil
}

func listItem(argv []string) *item {
	it := &item{shape: yaml.SequenceNode}
	for _, w := range argv {
		it.list = append(it.list, scalarItem(w))
	}
	return it
}
