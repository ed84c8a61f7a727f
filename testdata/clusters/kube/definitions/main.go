// Command definitions prints custom resource definitions for the tests' API server, as one List:
//
//	go run ./testdata/clusters/kube/definitions OPENAPI FILE... >definitions.json
//
// OPENAPI is openapi/openapi.json of the module github.com/openshift/api: a plain Kubernetes
// server with these definitions refuses unknown fields and wrong types, as OpenShift's server
// does. Each FILE is a definition in YAML. The output has only the stored version, without
// descriptions: the server keeps every schema in memory several times, which would take a
// gigabyte with the descriptions.
package main

import (
	"encoding/json"
	"errors"
	"fmt"
	"os"

	"sigs.k8s.io/yaml"
)

func main() {
	if err := write(os.Args[1:]); err != nil {
		fmt.Fprintln(os.Stderr, "definitions:", err)
		os.Exit(1)
	}
}

func write(args []string) error {
	if len(args) == 0 {
		return errors.New("usage: definitions OPENAPI FILE...")
	}
	items, err := openshift(args[0])
	if err != nil {
		return err
	}
	for _, name := range args[1:] {
		data, err := os.ReadFile(name)
		if err != nil {
			return err
		}
		var crd object
		if err := yaml.Unmarshal(data, &crd); err != nil {
			return fmt.Errorf("reading %s: %w", name, err)
		}
		if err := trim(crd); err != nil {
			return fmt.Errorf("reading %s: %w", name, err)
		}
		items = append(items, crd)
	}
	return json.NewEncoder(os.Stdout).Encode(object{"apiVersion": "v1", "kind": "List", "items": items})
}

// trim removes the parts of a definition that validation does not need.
func trim(crd object) error {
	spec, _ := crd["spec"].(object)
	versions, _ := spec["versions"].([]any)
	for _, v := range versions {
		if v, _ := v.(object); v["storage"] == true {
			plain(v["schema"])
			spec["versions"] = []any{v}
			delete(spec, "conversion") // between versions
			return nil
		}
	}
	return fmt.Errorf("there is no stored version")
}

// plain removes descriptions from a schema, but keeps properties named "description".
func plain(schema any) {
	switch s := schema.(type) {
	case []any:
		for _, e := range s {
			plain(e)
		}
	case object:
		if _, is := s["description"].(string); is {
			delete(s, "description")
		}
		for _, e := range s {
			plain(e)
		}
	}
}
