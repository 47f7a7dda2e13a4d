#!/usr/bin/perl
# old-kernel.pl CMD [ARG...]: runs CMD, and all that it starts, on a kernel that has no system call
# younger than Linux 5.0: ENOSYS, as such a kernel says. Gone are pidfds (5.1, 5.3), clone3 (5.3),
# openat2 and pidfd_getfd (5.6), close_range (5.9) and all later ones: they have the numbers from 424
# on, on every architecture. 4.18 and 4.19 lack nothing else that is asked for here.
# A seccomp filter: root needs no leave, and nobody below can take it off.
use strict;
use warnings;
use POSIX ();

my %call = ('x86_64' => [157, 0xc000003e], 'aarch64' => [167, 0xc00000b7]); # prctl, AUDIT_ARCH_*
my $machine = (POSIX::uname())[4];
my ($prctl, $arch) = @{$call{$machine} // die "old-kernel.pl: unknown machine $machine\n"};
# BPF: an instruction is code, jump if true, jump if false, operand. Loads are from struct seccomp_data.
my @filter = (
    [0x20, 0, 0, 4],             # its architecture
    [0x15, 0, 3, $arch],         # another one (i386): allowed
    [0x20, 0, 0, 0],             # the call's number
    [0x35, 0, 1, 424],           # at least 424?
    [0x06, 0, 0, 0x00050000 | 38], # SECCOMP_RET_ERRNO, ENOSYS
    [0x06, 0, 0, 0x7fff0000],    # SECCOMP_RET_ALLOW
);
my $program = join '', map { pack 'SCCL', @$_ } @filter;
my $fprog = pack 'S x6 P', scalar @filter, $program;
# PR_SET_SECCOMP, SECCOMP_MODE_FILTER
syscall($prctl, 22, 2, $fprog, 0, 0) == 0 or die "old-kernel.pl: no seccomp filter: $!\n";
exec { $ARGV[0] } @ARGV or die "old-kernel.pl: cannot run $ARGV[0]: $!\n";
