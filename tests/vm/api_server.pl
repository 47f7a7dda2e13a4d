#!/usr/bin/perl
# api_server.pl PORT LEASE: an API server of one node with one card, no pod, and one Lease, which stands in the file LEASE as it
# was last written. Nothing else changes, so that its watches tell nothing and end when they should. Perl, because Debian always
# has it.
use strict;
use warnings;
use IO::Socket::INET;
use JSON::PP;
my ($port, $lease) = @ARGV;
$SIG{CHLD} = 'IGNORE';
$SIG{PIPE} = 'IGNORE'; # whoever asked may be gone
my $json = JSON::PP->new->canonical;
my $cards = $json->encode({version => 1, cards => [
    {uuid => 'GPU-0', index => 0, memory_mib => 16384, local_mib => 0, healthy => JSON::PP::true, one_uid => JSON::PP::true}]});
my $node = {metadata => {name => 'n1', uid => 'n', resourceVersion => '1',
    labels => {'ack.node.gpu.schedule' => 'mps'}, annotations => {'mpsgate.io/cards' => $cards}}};

my $server = IO::Socket::INET->new(LocalAddr => "127.0.0.1:$port", Listen => 64, ReuseAddr => 1) or die "listen: $!";
while (1) {
    my $client = $server->accept or next;
    defined(my $pid = fork) or die "fork: $!";
    if ($pid) { close $client; next }
    close $server;
    $client->autoflush(1);
    serve($client);
    exit;
}

sub serve {
    my ($client) = @_;
    while (defined(my $first = <$client>)) {
        my ($method, $path, $query) = $first =~ m{^(\S+) ([^?\s]+)\??(\S*)} or return;
        my $length = 0;
        while (defined(my $line = <$client>)) {
            last if $line eq "\r\n";
            $length = $1 if $line =~ /^content-length: *(\d+)/i;
        }
        my $body = '';
        read $client, $body, $length if $length;
        if ($query =~ /watch=/ && $query =~ /timeoutSeconds=(\d+)/) {
            print $client "HTTP/1.1 200 OK\r\nContent-Type: application/json\r\nTransfer-Encoding: chunked\r\n\r\n";
            sleep $1;
            print $client "0\r\n\r\n";
            next;
        }
        my ($code, $answer) = answer($method, $path, $body);
        printf $client "HTTP/1.1 %d x\r\nContent-Type: application/json\r\nContent-Length: %d\r\n\r\n%s", $code, length $answer, $answer;
    }
}

sub answer {
    my ($method, $path, $body) = @_;
    my $list = sub { $json->encode({kind => 'List', apiVersion => 'v1', metadata => {resourceVersion => '1'}, items => [@_]}) };
    return (200, $list->($node)) if $path eq '/api/v1/nodes';
    return (200, $list->()) if $path eq '/api/v1/pods';
    if ($path =~ m{/leases}) {
        if ($method ne 'GET') {
            my $written = $json->decode($body);
            $written->{metadata}{resourceVersion} = '1';
            # Whole or not at all for whoever reads it.
            open my $file, '>', "$lease.$$" or die "$lease: $!";
            print $file $json->encode($written);
            close $file;
            rename "$lease.$$", $lease or die "$lease: $!";
        }
        if (open my $file, '<', $lease) { return (200, join '', <$file>) }
    }
    return (404, $json->encode({kind => 'Status', status => 'Failure', reason => 'NotFound', message => $path, code => 404}));
}
