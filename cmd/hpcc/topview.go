package main

import (
	"fmt"
	"strings"
	"text/tabwriter"
	"time"
)

// topStale is from when on the age of a sample is told: it is taken every few seconds.
const topStale = time.Minute

// topText is the table of tasks below what they use together, in as many rows as a
// terminal has.
func topText(now *topState, rows int) string {
	var b strings.Builder
	name := now.ID
	if now.Site != "" {
		name += " at " + now.Site
	}
	rowf(&b, "%s  %s  %s: %d of %d done, %d failed, %d running, %d waiting\n", name, now.Target, now.State, now.Done, now.Total, now.Failed, now.Running, now.Waiting)
	if now.Silent > 0 {
		fmt.Fprintf(&b, "%s no record yet\n", counted(now.Silent, "task that runs has", "tasks that run have"))
	}
	if now.Unseen > 0 {
		fmt.Fprintf(&b, "%s not looked at yet\n", counted(now.Unseen, "task that runs was", "tasks that run were"))
	}
	if len(now.Tasks) == 0 {
		return b.String()
	}
	b.WriteString(topSum(now))
	gpus := len(now.Sum.GPUs) > 0
	w := tabwriter.NewWriter(&b, 0, 8, 2, ' ', 0)
	fmt.Fprintf(w, "TASK\tHOST\tFOR\tCPU\tMEM\tPEAK\tOF\tREAD/S\tWRITE/S\tTHREADS\t%sTHROTTLED\tWAITS\n", only(gpus, "GPU\tGPUMEM\t"))
	for i := range now.Tasks[:min(len(now.Tasks), max(1, rows))] {
		topRow(w, &now.Tasks[i], gpus)
	}
	_ = w.Flush() // into memory
	more := len(now.Tasks) - max(1, rows)
	return b.String() + only(more > 0, strings.Repeat("\n", max(0, more)))
}

// topWarnings are lines for a few of what could not be read.
func topWarnings(words []string) string {
	var b strings.Builder
	for _, w := range words[:min(len(words), 3)] {
		fmt.Fprintf(&b, "hpcc: warning: %s\n", oneLine(w))
	}
	return b.String()
}

// topSum is the line of what all tasks use.
func topSum(now *topState) string {
	s := &now.Sum
	text := fmt.Sprintf("CPU %.1f of %s (%s)  memory %s%s  read %s/s  write %s/s", s.CPUs, number(s.Granted), percent(s.CPUs, s.Granted), size(s.Memory), only(s.Limit > 0, " of "+size(s.Limit)), size(int64(s.Read)), size(int64(s.Written)))
	if n := len(s.GPUs); n > 0 {
		busy, memory := s.gpu()
		text += fmt.Sprintf("  GPU %s of %d, %s", percent(busy, 100), n, size(memory))
	}
	return text + "\n"
}

func topRow(w *tabwriter.Writer, t *topTask, gpus bool) {
	task := fmt.Sprint(t.Task)
	if t.Step != "" {
		task += " " + t.Step
	}
	gpu := only(gpus, "\t\t")
	if len(t.GPUs) > 0 {
		busy, memory := t.gpu()
		gpu = fmt.Sprintf("%s\t%s\t", percent(busy, 100), size(memory))
	}
	waits := ""
	if what, part := t.waits(); part >= 0.005 {
		waits = fmt.Sprintf("%s %.0f%%", what, 100*part)
	}
	if d := time.Duration(t.Age * float64(time.Second)); d > topStale {
		waits += "  as of " + elapsed(d) + " ago"
	}
	rowf(w, "%s\t%s\t%s\t%.2f/%s\t%s\t%s\t%s\t%s\t%s\t%d\t%s%s\t%s\n", task, t.Host, elapsed(time.Since(t.Start)), t.CPUs, number(t.Granted),
		size(t.Memory), size(t.Peak), only(t.Limit > 0, size(t.Limit)), size(int64(t.Read)), size(int64(t.Written)), t.Threads, columns(gpu), only(t.Stalled >= 0.005, fmt.Sprintf("%.2f", t.Stalled)), waits)
}

// number writes an amount of processors: whole where it is.
func number(n float64) string { return fmt.Sprintf("%.4g", n) }

// percent writes a part of something; where it is negative, or there is nothing, it is not known.
func percent(part, of float64) string {
	if of <= 0 || part < 0 {
		return "–"
	}
	return fmt.Sprintf("%.0f%%", 100*part/of)
}

// only is a text under a condition.
func only(have bool, text string) string {
	if have {
		return text
	}
	return ""
}
