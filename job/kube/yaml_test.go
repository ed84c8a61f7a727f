package kube

import (
	"encoding/json"
	"testing"

	"sigs.k8s.io/yaml"

	"hpcc/testdata/helpers/testenv"
)

// FuzzYAML has the library of kubectl read what toYAML writes.
func FuzzYAML(f *testing.F) {
	for _, s := range []string{
		"", "y", "No", "on", "~", "null", "0777", "0o17", "0x1F", "0b1", "1_000", "1:20", "-.5", ".inf", "1e3", "=", "<<", "2001-01-01",
		"a: b", "- a", "# a", " a ", "a\n", "\na\n\n", "a\r\nb", "\t", "\t\n", "a\n\tb", "\n#", " \na", "a\x7f\u0085\ufeff", "'", `"`, "é\u2028\U0001F600",
		"{a}", "[a", "*a", "&a", "!a", "%a", "@a", "`a", "a #b", "#!/bin/sh\nset -e\n\n  a  \n", "---\na\n...\n",
		"a long line that an encoder might want to fold somewhere, which a shell would notice at once, if it came to that",
	} {
		f.Add(s, int64(1)<<53, 0.1)
	}
	f.Fuzz(func(t *testing.T, s string, n int64, x float64) {
		v := map[string]any{"text": s, "list": []any{s, n, map[string]string{"10": s, "9": s, "y": s}}, "n": n, "x": x, "none": nil, "empty": []any{}}
		want, err := json.Marshal(v)
		if err != nil {
			t.Skip(err) // not a number
		}
		text, err := toYAML(v)
		testenv.Check(t, err)
		got, err := yaml.YAMLToJSON(text)
		testenv.Check(t, err)
		var a, b any
		testenv.Check(t, json.Unmarshal(want, &a))
		testenv.Check(t, json.Unmarshal(got, &b))
		w, _ := json.Marshal(a)
		if g, _ := json.Marshal(b); string(g) != string(w) {
			t.Errorf("%s is read as %s; want %s", text, g, w)
		}
	})
}
