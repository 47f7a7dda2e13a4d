#!/usr/bin/perl
# memlock.pl CMD [ARG...]: runs CMD, and all that it starts, where a process that sets its own
# RLIMIT_MEMLOCK is told that it was done, and nothing is. crun 1.8 raises it before it loads
# a device filter of cgroup v2, and gives up where root lacks CAP_SYS_RESOURCE; kernels from 5.11 on
# count that memory in the cgroup, so nothing depends on it. With that capability, CMD as it is.
# A seccomp filter: root needs no leave, and nobody below can take it off.
use strict;
use warnings;
use POSIX ();

my %call = ('x86_64' => [157, 0xc000003e, 302], 'aarch64' => [167, 0xc00000b7, 261]); # prctl, AUDIT_ARCH_*, prlimit64
my $machine = (POSIX::uname())[4];
my ($prctl, $arch, $prlimit) = @{$call{$machine} // die "memlock.pl: unknown machine $machine\n"};
open my $status, '<', '/proc/self/status' or die "memlock.pl: no /proc: $!\n";
my ($capabilities) = map { /^CapEff:\s+(\w+)/ ? hex substr $1, -8 : () } <$status>;
if (!($capabilities >> 24 & 1)) {
    # BPF: an instruction is code, jump if true, jump if false, operand. Loads are from struct
    # seccomp_data; an argument has eight bytes from 16 on.
    my @filter = (
        [0x20, 0, 0, 4],           # its architecture
        [0x15, 0, 11, $arch],      # another one (i386): allowed
        [0x20, 0, 0, 0],           # the call's number
        [0x15, 0, 9, $prlimit],
        [0x20, 0, 0, 16],          # whose: its own
        [0x15, 0, 7, 0],
        [0x20, 0, 0, 24],          # RLIMIT_MEMLOCK
        [0x15, 0, 5, 8],
        [0x20, 0, 0, 40],          # where the old one is to be written: nowhere
        [0x15, 0, 3, 0],
        [0x20, 0, 0, 44],
        [0x15, 0, 1, 0],
        [0x06, 0, 0, 0x00050000],  # SECCOMP_RET_ERRNO, 0
        [0x06, 0, 0, 0x7fff0000],  # SECCOMP_RET_ALLOW
    );
    my $program = join '', map { pack 'SCCL', @$_ } @filter;
    my $fprog = pack 'S x6 P', scalar @filter, $program;
    # PR_SET_SECCOMP, SECCOMP_MODE_FILTER
    syscall($prctl, 22, 2, $fprog, 0, 0) == 0 or die "memlock.pl: no seccomp filter: $!\n";
}
exec { $ARGV[0] } @ARGV or die "memlock.pl: cannot run $ARGV[0]: $!\n";
