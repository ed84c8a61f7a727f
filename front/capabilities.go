package front

import (
	"slices"
	"strings"
)

// dockerCapabilities are those of a container of docker without options.
const dockerCapabilities = "CHOWN,DAC_OVERRIDE,FSETID,FOWNER,MKNOD,NET_RAW,SETGID,SETUID,SETFCAP,SETPCAP,NET_BIND_SERVICE,SYS_CHROOT,KILL,AUDIT_WRITE"

// capabilityList returns the names in the values of an option in capitals, each after sign.
func (l *commandLine) capabilityList(option, sign string) (names []string) {
	for name := range strings.SplitSeq(strings.ToUpper(strings.Join(l.values[option], ",")), ",") {
		if name = strings.TrimSpace(name); name != "" {
			names = append(names, sign+strings.TrimPrefix(name, "CAP_"))
		}
	}
	return names
}

// capabilities returns the flag for the capabilities of a container: Docker's own with the changes
// of the options. As in Docker, --cap-add wins, unless it adds all. They apply to the container's
// user namespace and give no rights on the host.
func (d *docker) capabilities(*Request) ([]string, error) {
	add, drop := d.capabilityList("--cap-add", ""), d.capabilityList("--cap-drop", "-")
	list := slices.Concat([]string{dockerCapabilities}, drop, add)
	switch {
	case d.on["--privileged"] != "":
		list = []string{"ALL"}
	case slices.Contains(add, "ALL"):
		list = append([]string{"ALL"}, slices.DeleteFunc(drop, func(name string) bool { return name == "-ALL" })...)
	}
	return []string{"--capabilities=" + strings.Join(list, ",")}, nil
}

// capabilities returns the flag for the capabilities of a container: all if the user is root in it,
// else none, with the changes of the options.
func (a *apptainer) capabilities(*imageSource, *Request) ([]string, error) {
	isRoot := a.on["--fakeroot"] != ""
	if a.on["--keep-privs"] != "" && !isRoot {
		return nil, refusal(a.program, a.text["--keep-privs"], "only root has privileges to keep",
			"--fakeroot makes you root in the container; --add-caps gives single capabilities")
	}
	var list []string
	if isRoot && a.on["--no-privs"] == "" {
		list = []string{"ALL"}
	}
	list = slices.Concat(list, a.capabilityList("--add-caps", ""), a.capabilityList("--drop-caps", "-"))
	return []string{"--capabilities=" + strings.Join(list, ",")}, nil
}
