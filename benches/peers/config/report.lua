-- Gives every thread of wrk one of the addresses in TARGETS, in turn, and prints what was measured as
-- numbers: requests, microseconds, bytes, errors, then in microseconds the mean and the percentiles 50, 99, 99.9 and 99.99.

local targets = {}
for host, port in os.getenv("TARGETS"):gmatch("(%S+):(%d+)") do
    targets[#targets + 1] = { host, port }
end

local threads = 0

function setup(thread)
    local target = targets[threads % #targets + 1]
    thread.addr = wrk.lookup(target[1], target[2])[1]
    threads = threads + 1
end

function done(summary, latency)
    local e = summary.errors
    local errors = e.connect + e.read + e.write + e.status + e.timeout
    io.write(string.format("measured %d %d %d %d", summary.requests, summary.duration, summary.bytes, errors))
    io.write(string.format(" %d", latency.mean))
    for _, percentile in ipairs({ 50, 99, 99.9, 99.99 }) do
        io.write(string.format(" %d", latency:percentile(percentile)))
    end
    io.write("\n")
end
