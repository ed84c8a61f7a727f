package bare

import (
	"encoding/json"
	"slices"
	"strings"
	"testing"
)

// image has the fields that package runtime reads.
type image struct {
	Architecture string `json:"architecture"`
	Config       struct {
		Env, Entrypoint, Cmd []string
		WorkingDir, User     string
	} `json:"config"`
}

// compare compares the result of read for a file with that of encoding/json.
func compare(t *testing.T, file string) (ok bool) {
	t.Helper()
	var c config
	if !c.read(new(run), file) {
		return false
	}
	var want image
	if err := json.Unmarshal([]byte(file), &want); err != nil {
		t.Errorf("read %q; encoding/json: %v", file, err)
		return true
	}
	if c.architecture != want.Architecture || c.dir != want.Config.WorkingDir || c.user != want.Config.User || !slices.Equal(c.env.of[:c.env.n], want.Config.Env) ||
		!slices.Equal(c.entrypoint.of[:c.entrypoint.n], want.Config.Entrypoint) || !slices.Equal(c.command.of[:c.command.n], want.Config.Cmd) {
		t.Errorf("read %q: %q %q %q %q %q; encoding/json: %q", file, c.architecture, c.dir, c.env.of[:c.env.n], c.entrypoint.of[:c.entrypoint.n], c.command.of[:c.command.n], want)
	}
	return true
}

// configs are configurations. ok is false for those that read must leave to the Go program.
var configs = []struct {
	file string
	ok   bool
}{
	{`{}`, true},
	{" {\n\t\"architecture\" : \"amd64\" , \"config\" : { } }\r\n", true},
	{`{"architecture":"amd64","config":{"User":"me","Env":["PATH=/bin","A="],"Entrypoint":["/e"],"Cmd":["a","b c"],"WorkingDir":"/w","Labels":{"x":"\u00e9\"\\"}},"os":"linux"}`, true},
	{`{"config":{"Env":null,"Cmd":[],"Entrypoint":null,"WorkingDir":null},"history":[{"created_by":"RUN a \u0026\u0026 b","empty_layer":true},{"n":-12,"m":0}],"rootfs":{"diff_ids":["größe"]}}`, true},
	{`{"config":null}`, true},
	{`{"config":{"Env":["A=ä","B=\u0026\u003E\u007e\"\\\/\n\t"],"User":"0:0"}}`, true},
	{`{"config":{"Env":["A=\u00e9"]}}`, false}, {`{"config":{"Env":["A=\u0000"]}}`, false}, {`{"config":{"Env":["A=\ud83d\ude00"]}}`, false}, {`{"config":{"Env":["A=\u1041"]}}`, false},
	{"{\"config\":{\"Env\":[\"A=\xff\"]}}", false}, {"{\"config\":{\"WorKingDir\":\"/\"}}", false}, {`{"\u0063onfig":{"Cmd":["a"]}}`, true},
	{`{"config":{"env":["A=1"]}}`, false},
	{`{"Architecture":"arm64"}`, false},
	{`{"architecture":"amd64","architecture":"arm64"}`, false},
	{`{"config":{},"config":{}}`, false},
	{`{"config":{"Cmd":"a"}}`, false},
	{`{"config":{"Cmd":[1]}}`, false},
	{`{"config":[]}`, false},
	{`{"a":01}`, false}, {`{"a":1.5}`, false}, {`{"a":-}`, false}, {`{"a":truth}`, false}, {`{"a":"\x"}`, false}, {`{"a":"\u12g4"}`, false},
	{"{\"a\":\"\n\"}", false}, {`{"a":"`, false}, {`{"a":"\`, false}, {`{"a":"\u12`, false}, {`{"a":1,}`, false}, {`{"a":[1,]}`, false}, {`{"a":[1}`, false}, {`{"a" 1}`, false},
	{`{}x`, false}, {``, false}, {`null`, false}, {`[]`, false}, {`{`, false}, {`{"a":`, false},
	{`{"a":` + strings.Repeat("[", 100) + strings.Repeat("]", 100) + `}`, false},
	{`{"config":{"Cmd":["` + strings.Repeat(`a","`, maxList) + `"]}}`, false},
}

func TestConfig(t *testing.T) {
	for _, c := range configs {
		if ok := compare(t, c.file); ok != c.ok {
			t.Errorf("read %q: %v; want %v", c.file, ok, c.ok)
		}
	}
}

func FuzzConfig(f *testing.F) {
	for _, c := range configs {
		f.Add(c.file)
	}
	f.Fuzz(func(t *testing.T, file string) { compare(t, file) })
}
