package wrapper

import (
	"fmt"
	"os"
	"path/filepath"
	"strings"

	"hpcc/files"
)

// writeModules writes the module files, in the languages of Environment Modules and of Lmod. Lmod
// prefers its own; Environment Modules ignores files that do not begin with "#%Module".
func writeModules(o Options) error {
	file := filepath.Join(o.Dir, "modulefiles", filepath.FromSlash(o.Module))
	if err := os.MkdirAll(filepath.Dir(file), 0o777); err != nil {
		return err
	}
	name, _, _ := strings.Cut(o.Module, "/")
	about, bin := "Programs of the container image "+o.Image, filepath.Join(o.Dir, "bin")
	tcl := fmt.Sprintf("#%%Module1.0\n%s\nmodule-whatis %s\nproc ModulesHelp { } { puts stderr %[2]s }\nconflict %s\nprepend-path PATH %s\n",
		mark, tclQuote(about), tclQuote(name), tclQuote(bin))
	if err := files.Replace(file, []byte(tcl), 0o666); err != nil {
		return err
	}
	lua := fmt.Sprintf("-- %s\nwhatis(%s)\nhelp(%[2]s)\nconflict(%s)\nprepend_path(\"PATH\", %s)\n",
		mark[2:], luaQuote(about), luaQuote(name), luaQuote(bin))
	return files.Replace(file+".lua", []byte(lua), 0o666)
}

// tclQuote quotes a string for Tcl: a backslash before each character with a meaning.
func tclQuote(s string) string {
	var b strings.Builder
	for _, c := range s {
		if strings.ContainsRune(`\"$[]{}`, c) {
			b.WriteByte('\\')
		}
		b.WriteRune(c)
	}
	return `"` + b.String() + `"`
}

// luaQuote quotes a string for Lua.
func luaQuote(s string) string {
	return `"` + strings.NewReplacer(`\`, `\\`, `"`, `\"`, "\n", `\n`).Replace(s) + `"`
}
