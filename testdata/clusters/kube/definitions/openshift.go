package main

import (
	"encoding/json"
	"fmt"
	"os"
	"slices"
	"strings"
)

// kinds are the kinds that users of a namespace create, by definition and plural.
var kinds = []struct{ group, version, kind, plural string }{
	{"build", "v1", "BuildConfig", "buildconfigs"},
	{"build", "v1", "Build", "builds"},
	{"apps", "v1", "DeploymentConfig", "deploymentconfigs"},
	{"image", "v1", "ImageStream", "imagestreams"},
	{"route", "v1", "Route", "routes"},
}

type object = map[string]any

// A definition holds the used fields of an OpenAPI 2 definition.
type definition struct {
	Ref        string                 `json:"$ref"`
	Type       string                 `json:"type"`
	Format     string                 `json:"format"`
	Enum       []any                  `json:"enum"`
	Required   []string               `json:"required"`
	Properties map[string]*definition `json:"properties"`
	Items      *definition            `json:"items"`
	Values     *definition            `json:"additionalProperties"`
}

// openshift returns definitions of OpenShift's kinds, from openapi/openapi.json of the
// module github.com/openshift/api.
func openshift(name string) ([]any, error) {
	data, err := os.ReadFile(name)
	if err != nil {
		return nil, err
	}
	var file struct {
		Definitions map[string]*definition `json:"definitions"`
	}
	if err := json.Unmarshal(data, &file); err != nil {
		return nil, fmt.Errorf("reading %s: %w", name, err)
	}
	var made []any
	for _, k := range kinds {
		name := fmt.Sprintf("com.github.openshift.api.%s.%s.%s", k.group, k.version, k.kind)
		schema, err := resolve(file.Definitions, &definition{Ref: name}, nil)
		if err != nil {
			return nil, err
		}
		schema["properties"].(object)["metadata"] = object{"type": "object"} // the server validates it
		group := k.group + ".openshift.io"
		made = append(made, object{
			"apiVersion": "apiextensions.k8s.io/v1", "kind": "CustomResourceDefinition",
			"metadata": object{"name": k.plural + "." + group},
			"spec": object{
				"group": group, "scope": "Namespaced",
				"names": object{"kind": k.kind, "listKind": k.kind + "List", "plural": k.plural, "singular": strings.ToLower(k.kind)},
				"versions": []any{object{
					"name": k.version, "served": true, "storage": true,
					"schema": object{"openAPIV3Schema": schema}, "subresources": object{"status": object{}},
				}},
			},
		})
	}
	return made, nil
}

// resolve returns the structural schema of a definition, which has no references and a
// type everywhere. within are the definitions that contain it.
func resolve(all map[string]*definition, d *definition, within []string) (object, error) {
	anything := object{"x-kubernetes-preserve-unknown-fields": true}
	if d.Ref != "" {
		name := d.Ref[strings.LastIndexByte(d.Ref, '/')+1:]
		switch last := name[strings.LastIndexByte(name, '.')+1:]; {
		case last == "Quantity" || last == "IntOrString":
			return object{"x-kubernetes-int-or-string": true}, nil
		case last == "RawExtension" || last == "FieldsV1" || slices.Contains(within, name):
			anything["type"] = "object"
			return anything, nil
		case all[name] == nil:
			return nil, fmt.Errorf("there is no definition %q", name)
		}
		return resolve(all, all[name], append(within[:len(within):len(within)], name))
	}
	if d.Type == "" {
		return anything, nil
	}
	s := object{"type": d.Type}
	if slices.Contains([]string{"int32", "int64", "double", "date-time", "byte"}, d.Format) {
		s["format"] = d.Format
	}
	if len(d.Enum) > 0 {
		s["enum"] = d.Enum
	}
	if len(d.Required) > 0 {
		s["required"] = d.Required
	}
	var err error
	switch {
	case d.Properties != nil:
		properties := object{}
		for name, p := range d.Properties {
			if properties[name], err = resolve(all, p, within); err != nil {
				return nil, err
			}
		}
		s["properties"] = properties
	case d.Items != nil:
		s["items"], err = resolve(all, d.Items, within)
	case d.Values != nil:
		s["additionalProperties"], err = resolve(all, d.Values, within)
	case d.Type == "object":
		s["x-kubernetes-preserve-unknown-fields"] = true
	}
	return s, err
}
