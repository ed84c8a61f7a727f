package report

import (
	"fmt"
	"math"
	"strconv"
	"strings"
	"time"

	"hpcc/text"
)

// A unit is the unit of measurement of a figure.
type unit int

const (
	inSeconds unit = iota
	inBytes
	inPercent // a fraction of 1, printed as a percentage
	inMoney
	inEnergy // kWh
	inNumber
)

// format formats a figure for people, with three significant digits and a suitable prefix of the
// unit.
func (u unit) format(v float64, currency string) string {
	switch u {
	case inSeconds:
		return formatSeconds(v)
	case inBytes:
		return formatBytes(v)
	case inPercent:
		return formatPercent(v)
	case inMoney:
		return strings.TrimSpace(digits(v) + " " + currency)
	case inEnergy:
		return formatEnergy(v)
	}
	return digits(v)
}

// formatRange formats a value and its range: "8.70 GiB (8.60 – 8.81 GiB)". It omits a range whose
// ends round to the value.
func (u unit) formatRange(v, low, high float64, currency string) string {
	middle, a, b := u.format(v, currency), u.format(low, currency), u.format(high, currency)
	if a == middle && b == middle {
		return middle
	}
	number, name, _ := strings.Cut(a, " ")
	if _, other, _ := strings.Cut(b, " "); name == other {
		a = number
	}
	return fmt.Sprintf("%s (%s – %s)", middle, a, b)
}

func formatSeconds(v float64) string {
	const minute, hour, day = 60, 3600, 86400
	switch {
	case v == 0:
		return "0 s"
	case v < 0.001:
		return digits(v*1e6) + " µs"
	case v < 0.9995:
		return digits(v*1000) + " ms"
	case v < minute-0.05:
		return digits(v) + " s"
	case v < 100*hour:
		d := time.Duration(v * float64(time.Second)).Round(time.Second)
		if d < time.Hour {
			return fmt.Sprintf("%dm%02ds", d/time.Minute, d%time.Minute/time.Second)
		}
		d = d.Round(time.Minute)
		return fmt.Sprintf("%dh%02dm", d/time.Hour, d%time.Hour/time.Minute)
	}
	return digits(v/day) + " days"
}

// formatCPUTime formats a sum of processor times in seconds.
func formatCPUTime(v float64) string {
	switch {
	case v < 60:
		return digits(v) + " CPU-seconds"
	case v < 3600:
		return digits(v/60) + " CPU-minutes"
	}
	return digits(v/3600) + " CPU-hours"
}

func formatBytes(v float64) string {
	units := []string{"B", "KiB", "MiB", "GiB", "TiB", "PiB"}
	i := 0
	for ; v >= 1023.5 && i < len(units)-1; i++ {
		v /= 1024
	}
	return digits(v) + " " + units[i]
}

// formatEnergy formats kWh.
func formatEnergy(v float64) string {
	switch {
	case v == 0, v >= 1 && v < 1000:
		return digits(v) + " kWh"
	case v >= 1000:
		return digits(v/1000) + " MWh"
	}
	return digits(v*1000) + " Wh"
}

func formatPercent(v float64) string {
	switch v *= 100; {
	case v == 0:
		return "0%"
	case v < 0.1:
		return "<0.1%"
	case v < 9.95:
		return fmt.Sprintf("%.1f%%", v)
	}
	return fmt.Sprintf("%.0f%%", v)
}

// digits formats a number with three significant digits, or with all digits if it is an integer
// below a million.
func digits(v float64) string {
	if a := math.Abs(v); a == math.Trunc(a) && a < 1e6 {
		return strconv.FormatFloat(v, 'f', 0, 64)
	}
	return significant(v)
}

// smallest is the smallest number whose digits significant prints.
const smallest = 1e-6

// significant formats a number with three significant digits, never with an exponent.
func significant(v float64) string {
	if a := math.Abs(v); a > 0 && a < smallest {
		return "<0.000001"
	}
	_, exponent, _ := strings.Cut(strconv.FormatFloat(v, 'e', 2, 64), "e")
	power, _ := strconv.Atoi(exponent)
	return strconv.FormatFloat(v, 'f', max(0, 2-power), 64)
}

// Maximum lengths of displayed text, in bytes.
const (
	longText     = 160  // of foreign text
	longSentence = 2000 // of hpcc's own text that contains foreign text
)

// plain returns foreign text on one line, cut.
func plain(s string) string { return text.Cut(text.OneLine(s), longText) }

// sentence is plain for longer text.
func sentence(s string) string { return text.Cut(text.OneLine(s), longSentence) }
