// definitions prints custom resource definitions for the tests' API server, as one List:
//
//	go run ./testdata/kube/definitions OPENAPI FILE... >definitions.json
//
// OPENAPI is openapi/openapi.json of the module github.com/openshift/api: OpenShift's
// own server has these kinds, so that a plain Kubernetes refuses a field or a type that
// they do not have. Each FILE is a definition in YAML. If there are several versions, the stored
// one stays, and no descriptions: the server holds every schema several times, with
// those it would need a gigabyte.
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
		return errors.New("name OPENAPI, and files of definitions")
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

// trim leaves of a definition what judges.
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

// plain removes descriptions from a schema, and not properties of that name.
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
