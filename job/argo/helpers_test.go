package argo

import (
	"hpcc/job"
)

// plain is a job as the command line makes it of the fewest words.
func plain() *job.Job {
	return &job.Job{Name: "main", Dir: "/home/u/job", Program: "/usr/bin/hpcc", Store: "/home/u/.local/share/hpcc", Image: "sci", Args: []string{"python", "main.py"}}
}

func with(change func(*job.Job)) *job.Job {
	j := plain()
	change(j)
	return j
}

// What the program of a measured pod leaves.
const (
	podHead = `{"kind":"header","version":1,"start":"2026-11-22T04:00:00Z","command":["main"],"machine":{"host":"train-x-0-abc","architecture":"amd64","cpus":2,"memory_bytes":1000,"kernel":"6"},"limits":{"cpus":2}}` + "\n"
	podFoot = `{"kind":"footer","end":"2026-11-22T04:00:10Z","wall_s":10,"exit":0,"usage":{"user_s":4,"system_s":1,"max_rss_bytes":1000},"memory_peak_bytes":2000,"memory_from":"cgroup","later":7}` + "\n"
)
