#!/bin/bash
# about: CRuby as a preforking server: four children answer over sockets from a heap they share; sha256
# group: servers
# packages: ruby
. "$(dirname "${BASH_SOURCE[0]}")/common.sh"

prepare() {
    need ruby
    cat >program.rb <<'END'
require 'digest'
require 'socket'
n = ARGV[0].to_i
TABLE = {}
(n * 2).times { |i| x = (i * 2654435761) & 0xffffffff; key = "k#{x % n}"; old = TABLE[key]; TABLE[key] = [x, "#{key}:#{i}", old ? old[0] ^ x : 0] }
GC.start
GC.compact if GC.respond_to?(:compact)
server = UNIXServer.new("server.#{$$}")
children = 4.times.map do |turn|
  fork do
    loop do
      client = server.accept
      line = client.gets.chomp
      exit!(0) if line == 'end'
      from, to = line.split.map(&:to_i)
      digest = Digest::SHA256.new
      (from...to).each { |i| entry = TABLE["k#{i}"]; digest << entry[1] << entry[2].to_s if entry; entry[2] += 0 if entry && i % 64 == 0 }
      client.puts digest.hexdigest
      client.close
    end
  end
end
answers = {}
parts = (0...n).step([n / 200, 1].max).to_a
clients = 4.times.map do |turn|
  Thread.new do
    parts.each_with_index do |from, index|
      next unless index % 4 == turn
      socket = UNIXSocket.new("server.#{$$}")
      socket.puts "#{from} #{[from + n / 200, n].min}"
      answers[from] = socket.gets
      socket.close
    end
  end
end
clients.each(&:join)
4.times { socket = UNIXSocket.new("server.#{$$}"); socket.puts 'end'; socket.close }
bad = children.count { |pid| Process.wait2(pid)[1] != 0 }
File.unlink("server.#{$$}")
puts Digest::SHA256.hexdigest(parts.map { |from| answers[from] }.join), bad
END
}

work() { ruby program.rb "$(sized 80000 25000)"; }

main "$@"
