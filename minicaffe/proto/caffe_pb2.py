"""Caffe's messages as protobuf classes. Written by tools/gen_proto.py from proto/caffe.proto; do not edit."""
# ruff: noqa

import base64
import zlib

from google.protobuf import descriptor_pool, message_factory
from google.protobuf.internal.enum_type_wrapper import EnumTypeWrapper

_SERIALIZED = """
c-qB0NpKt4b%TurJ^-=_QWQk3(;AJI@n|H?Xh!1L8G{5Qp$eM;kn%WH>1qN^vPS?K#v)RVli1npEOz2-
rzF=nha6HBUy@4Mr<Aj&%9k8csT|{+5~nKXy!Zb9-M_m*Qk-!r2bGBb|NF~(@4x@nX6O6%!0wp4yVhI7ku!1LqQ7s`-
?^0Asb65Jjh?g9+Bb(*Zjr^hc0V7v61x%Gh-wl2pCY`wL0}6kHke{}<VIpWawoUUlAV2XFtB>#d{j0rvAKQA-rJw#W3owOi37Vk+0VzlmU!2knE3>(6v
dUO#opb`&$%sESz?U4%FhE-
`rgWIchk4M9iL_Ct~1@~Sq9CQ1n3AsD;+p(N_Ob)vPJhq+g4}djBuqLXd2VO!z<BH{i_j{D4LULAGYcpn{WY$k!L0}<g)U>go0c~oEDFt!Oot!WA)(h*
qLK&x96A>egHatZk5ejgO1a+x^(#DdSch?jV=8TqbyUiCJl3B_N|FE!kGu~Cv78@dxOpO%oo-OseuPMuN-9iZUwtMP}qh&7*3H)F@RlSDf($31H_>zk-
NwicAZhjGIq?)vjcO~r5(%7<aD6V#GF{LXQa=vvKZ{Kg<ZLGjCHM@>7HQ^b{*eYayMC;FUX0UoQZl)<Qs@F*nGZAgU%^~{D;z;Ea|R&jU|Tr=9nXA;hv
^IHL!g>-Y&J;$ecavIgrEU;4B?%&*GTT4+!TpXLH)Ka+gn-
7f}gKhB7NPnTMh&CV7Of5|{WNIDialO3=c81ecGF)*4!!0IBaY26!7;MjyC@7FoFWs=5;ice`l!H}|d1vnmV(W}EMgjQ+I8Z)bEpayNGdY1A=a@aDK^)
^D+l50tUFR=Zi=Y-
_Iozq3ZESuM9(<?RyOsc%Nv;v>7)Q~7I^#V0R@V!!Ljjx&I>4JL^1=VoupHyuTMgIIx$%MJ10=ApY2kV^5sWe$k@<bd&{OMFKIa%^rqG)H4DDiZ6_H}B
>ivFvkmWSaxv-+?pg1A`%st}8eS?D+P!7+-_o>vN9^HKSb9-
(eZG9nrvh01at2kAK&<+8}V?M`63vEIcl0QT>0?Y_a9^o~sA}3QtBRFvh@|2r7aknONfqwL~QwP>T%^#D9rgo@IH{0NMa`o)leV^E<$BMsLJ%gAHAKJc
P?a$VuP=$agf`yyQgSfT7c~J1+<)DdfaGv)?yCNa7^$bLboZ0HdEch10hNAo=oXYFS~K1Cn+I@l8G>$Bie}aBP3c%4caQcpk<Bb2#32Ciw-
q=d)~4HX6f`wQC>d7ikw4Sk~<zk*%rH;scf*6Fxb^FA*`XDZ~t5Tl_}OU5`C(Y{8~eUF*3G++cU}Ik}rFY>9B&arz*N0F%ymoL^QKhIeFS4!Ta?7+WBY
SD-IO40eYty5uy5xNiOo3Bt2}LFh5STWmp6TL7$*JUbG=FFnty+e*Vz3`~<J)ZGHv;m&#P_)XkkX})bPyVs7E-PakT?ec-
=X{$2_>TJcOoVg2&7_>tE0&O@x8BI}WE|09eX%DW_m&}Rn3=9$u7fCooEB6!vQ^%#3BybxBug6-
Ci$LH+*XqF&dYQyR;;!}Pod>yB*|NAi_QW=OV)6VHWou_y#)O$b?sD?K%9-OXUKQkMF0FLBi)(D5)3b-h-pK6Qa3{w3tF#(21aKJMGlOoxYjTph!td~!
_RUHD8lCOtac2_{j|gBry-}_enjbcr^>!V$n;P}U;_AIltH<x$e)tgNL`q)Nd-
>}e3E1%v4#Gw84Z=2I>oQxSC)GHxL4b^`?zCg&Zz@;;QNl0zIDd;Ilg?5Wpn{X<zqnKfWSHZzy$i=cw1URK%%K5C86%Q^Bt(B11Q#Hzhj$-
j)5J2Tu<U^F^ai2zHFgG$dteM<Lo_AqXpFDXr&R6d4YuG%OfJddPl}K3gD75PDw5zyy2O|#0&?>#w%OQ%aqtI71L)t9{m4Ps3|N8w3@8ww6_lFwZ6VW(
g~!c8QH$b_X0-+LH?$azgPvlk(k^Im+z0%sY6<;&5tioj^1A`AHVNN|kcjD?WsU|`SBQMPz1P_MzC8v#^aTn0BlJ&X)6R4>0{R-
rmEJ3Go@H=+f7<8#n~?nf#@i2oVHb%h0jU!Mw2#4rzYGX?hGh`VeM?;Nf5#UhrGE#QJfJK3b&rf-C%%2qeRrJ6#OVt~5+u{a849fi4-
9)UI4f~=AJuIxs^&t+_0%0#C!aqCCpXx<J?QkNU8z5wogtq{X@im0As?AKex$43u_M&GRki?D)X>}m2&3y94B%Oe-ALx%rw3s$##=6AahIg4u1wLEBk0
0-
82%JvgeVSY5nNu?bD`54{SI3&JHQQQ=Y@dSC5Q_OL_rMjpzeU68||S!z+v_XW=(||?N!Y~9|Y)aaJdD<eh6Zdx;=<Zwh9n{hw;RI&IPJ~wF&mBA65?ZA
8(y4!6eU}-jrSn4*wCsU-rYxF+N11AtivGg%AlQoav3e$Fg0Zr8AW$>=A%!I2C!n2lF1&y3>CDg`up|C$Nhu7!C<71`iYoTn;q|Emq?F9t=F~*5Oc$cS
28l>2T<cz0Vf+ySw+*eGNlwf%4M7t%q!hz~GQW7Y|<~z)JzZIt}rmV&5L@`RF_fq2dV+@lzN8?LNM^%3jAIz%mZ;Z}u~68I_?u)L@iFCj@&%g%zXx>k{
|?<RRQ(c=F_Fr!&A|RD%!lQKL7K4Ea1njY_lTLu=pagH%_~co0HsmB#oF3Cr}K%ViEj%T%{(KBgKvpv@2V#P}B>rfTqh59T&YlZG!KzC;k`d=Lk!_=h_
+vU*c7{HH^As%cfWd^;N3dws|53V<(%cGTkiei&zW;>o6;3B&My-
zmmDROmUx&xTIX!d~AgzyRGB!+$Pxincj;qH^fsWFMZ#eWxeS@s&u3L)&tQPk4cH1Mh-L_pe4mgnvqd{Di;DGQ$^>eOKoFd?X}r8`Q5F73rZuoL`89iR
mZL8=%z=r9}C~NQk>yjfOY)ZI;CYnnQ`@Uy6hX)8qquEA$-6j=vmUq2lcMR@eodaAL_be=WSiBR;@K98y`8=i%#N;xy$DAGWOijwLDjD`9Mvu-
gN86PU*C$<zO8B+NC?>kWUvv>kKO*(aBS0Q$A?&Ngrix)Xdz^QidiVWgE*8p5u2Y*PxqZ-jTX0lmIck2|J&if@Kb-NJ4k0Qb#tfZqrMln1_t05;TtcT$
Z1&G3dcq1Q*hq5L6Wz7@ujJ3c^osRnbv-<m~uF~pAocv<D`|Lqwlz;6GE(9+}Me`m&tpw}DzS+-
&h1`cYGUG?IBp989{xq=+$zxzMImeB!c?>L9*%l6li(A!kSVH?h&|7nAZ1m;s8y%-
$wZ^9R;!3TIi?*bu4wlgwtRSx#Ik&w>Nz#*`p2UldPUHF4vK%e69cae~uSCk`z>cbP3_hv!ka%#G}|9d{qwOR9&#8CD9V9JgAhcHXvWkd7de^;N|UCU9
)^^al5Z5-n#)e1|43jfU5wXI%vEbXR$jj^*wsrMR7&<!LDN_bu8`u1q#jL3{~{W>cwMHh*TWAun-c}yjR9#B}YXOZET!mt4~aqk2-
tk!5>@FI4c9!xx^PJE6r-UpWW3%@7+4%vaQpg=-
0^yoCH+xPSi98Zr;g)URg@oBO5*rL_9(akm(lW%B3)>TmQ+LKLp0LGCB6Z_<K6lma02jp_3ru(44lkqJ1FB^Jji@e`QkGEL{)M|4eAA*Gt*-
O|xR)O?yM_Ja-2w?k;ohe||_2&vQM<tnkl#5Bq@i&5KjMU8f$)1ph^LS(~z$56AG{(>DAyHCbVjkl()}Sj~-RF<8dTtjt*5@mw?NX(<k<-~S=L-
>V61<aA7hGmZbk$n0X`&mf_l|y^MFBj`<V@Nt=mx1&;jf7P?Fh@wuz)}c(`DNw&$|e>tsU)>CpYJ`PrmW2FYXqj7BB7=r{8YeEkQrs2;$t)!6m)Umclk
skg$H5MTussY<|2y-Q5+0b=_1q*zzn}2{-
|n!0;R?`tL?rZibEXvAF6?n5%H)kAbn2b0*c%u;RcvFa!Zoa`*~5qYn&D2j)$Zw8w(C(u$jLnWaY#xkh_k;D`+2<vv>o=oc;}Bgatk3v79oHRY#WglMM
)BG)P_k<|5AiBPFOWVspYh_bCCL)7|rqilJWvj6`hJkGJq?w;YAHbmy=dhE{a``ERkb|uxWG(hc+OnQHLpa|X0_wEB_)9CTB4p9PkJ&K<dyP|kanmobr
19LP)e`Uw)>{|wT0LDafMb!BCAxr%5R}q%=D?2MJWADL>Zy7w49+9!FfqdurvkEFkRyJ|Ze~e_~t)pCPuA)GrDSVXJE>y}zeS<B9`cUFM+NxAQ_N5pfr
$sP2x>0CvJ~3M5FO;+>4yx5_B`u~`*izUn2XvnRo}O{m6ai23&~|ew?uL#_5oDMxf20cyp31&C+Or3q#&MA?^sGH}8A=Des(I);EH}eZ^A3ws^pwZC^<
%v{guC@<<*vR8C&pmu9D`qg5&Zw27S$iHGqe3N!MhN|fd2J3Tbb$ag9`yKgwR37?FQB(^9cI;;*eb0z;l8;${!D4wP)4{M1Z_Y{EbQMjhyLF-
lMy;waEySKzc>8V54V6^i#ZI^C5L9_=>@^NBa=~$rAxI^pJN!^>L-DXgToi7l<&ieW4*KEkZ%!F<IO@jL8OC4oK<A=00F^)&LmAqB!irz1L6hu--
1w==J$x=}}>;(spU3Np8Kw7P(3RPl?^X2ST6XweB5<J#_6Jzm7S?ss09=<FleZA?D?GYP0a@Q3*H*|J*9pYQRL_h%+tZ(t60^=mryf`uZ{6FKVb-lYOV
V9;+5UALIl694xt1k9mwh%oCqQfJBG@b0GrEhX{}qEhiKEeV0h-
&_xU#Fi0S{_<QggnLR^z3jHGY1IB>kfmS4`v!TFiX#OUSCeaw*ER`$zZN@yDVkix;%0q1h%nm_$*lO1|pA=f{@+J`QRMfu0Qto;vNpVF!_)(=^Z-
TD*g9u8MS?=0X$%fFqj-B>i$4>;1S0y2@N}h5;2IHYKwtVlj{$~-
k5b#CKI*u=GD;hpw?6?!gPkX||NdWryqAcTcgP*~`7N|9f_O%|lk1THXhWn<c?BrN{$C{WT4G46L_wK{%ohGw>WbL7_h=+JzU5cKcCXHNQENnLGt(E~y
SF4pOtz3php2-BFySew=>oiAGUOH;Zz*PdxlzFRw<Or?<oS9<_Ps{Bm<(g~+7CjZm|96CCd`?&lIKF@%c2_Ffoc8yH%!`K5qJoFy-EoKa0R|8Me|pb9V
!0V!(LB?pW6KcY3&Yer<uaLjot^DF&oS&FlQ&%LG^*x4<XFrajs;gyQpkPXWLdw1RNl*oyq93{;#D&bEkz5v#pYgCH0XZ<*Eir){jo2C(!;yyaaE?D`r
dX~#urw)!g8)EZOBAAj(Q<Y;FUK)!5@QFr&?0(7Q%>s2ppt^!l`Rs2zG=zflye{?9jg-VYwO3+%sW8h>v7QzC}+f-
%dukKPAhD^9w9%9ikvN_U&%h8u+qh^>2X<;}67~V+#Y&$0<%e?m0u(Id~`cz`dgUZeKns*cQ5@r@C`L$rb{^A&>haC!zw>3PE{;Qc=5pd*TYq_+l2W#F
qw%{$-|x0)d{Q6Sg>lgFo5fpR=q#;`bo1^yQ;sgP&~OS3xlNLk)}K<#Q2plV$zUg*4BQja-S|h|&-
95ReT&^jj=9BL=wwYK3dYORmz3KoK=xK!bH<9y3p23%ek&W#8U)(}igkUjXmp&GHCX&mUygWZG#&g*s`TZ$yBJf|224nJ6&$NOQ(DJx@j5DyRg3B$_pr
M&X9BZOq<{_)Q^U`$wgfkrB&t6aOJw3})DX@Dn*Xyj0@|pMib{n8+7&3%oz~(6V)QcgG_4III6L;4+ke@)?!_(KO=LS|nr~1joyU`fxqg+Nz=(t>aj`y
R<|U9t{m1ajeR~1Pn@}R8>^{I!n0|ptj#=){9)lfXM*ULg|PCVzf|HIP}1-u%rccje-|oPyJ8nQ3-
{H3*m#_JT{o@HOa#UXh4P>KfO%02L&>%fO!YQ3_|=Xip&Imv_7ZBu(4Vy)U>$%Q%nnm*<Z%_7~ax~qIASuoK!$4`LiWJgz)SNAD1n=ITsEFakyW8QDs>
?<Xa$G?PFCRU<(YZi+$-
9TMXtk0CR#pI_*i1P*&D}@T^0ydnj@PI^jsTMz63XUJ_yRoB(*OdcGGLM6VW#fWo}as4IdIS^f8bIcCHPFJQtQDLdn#iHXEMRp<`O@c8;m>m3(DZ>MUg
3Dqg?s!n(B=--L5rEnY;lk+i`o7+|~k**JtMz}I!JYC-$53P>WuVT~+=GHE}F#<u-86U@(x4+B>CUo_`Ik|-0-
{VWnOJ_N@><f>E_<6uR8Yt2zW0ltvkU!0maXs(%fv6)`cBN9*Qv@Hd<fhZLC|8%Uxy^dBRs!1}(|$KgwRWi~eXZC)oxC9iI?kn<GXQ~%39_x}a0t($FR
X_O=%7C~f)6IF`!?~ZE1$8>E9RM~!02B|u`{!y@imqOvzG_*-
7=Vkd!ITfjDNf0bg+T)+EcA+z21IeRPMrj3n2A(l?l0K_~wZd!uzr7&N$zyKWd{9$jx$@m+RI7!Tm<*KsngfSi~2AS^336L!QKALSdR3V||K9(5~h}?)
BNbsv-z&X`uncYBWp5@@BhSufY?s<bXxjGl#RI6tA&WGzody!Y=%y)zPb!^jRm%7!BRyo-Oj4W8sJEV!Ol*ODr_8JFr7zkB6is{28!H90T-
o15W~zQ_u=)aj*@vd~umF9CL3&Pa1o~))n5(eU_y#vdZzZ5O%KxFZFH7>Fa{eb2r#I9-
Vb9F_du=bF>Gy#8)PBjji?pan8<1c;6?EVeSo_@x<=<J+L>~nusTGp|*oqGDk0rogL?ps$<-tXk!iy%+~K({>qpdOLN@tldaIn-
Z+`^1ViV`04Ex?(&IwAyj{wDnx*g_s--kHeJKUU-r}?HGMW7$2w{>-tNdwu_Z@r|{QLro_-bkN*H~J)bs|{t3fz6~{%H|V$}{R!LS;}~CSEpBsXs20<0
ArQZp!6voMxlkC^XyUc8R-({0tA{*BSG$;)aV}0YU4-5LL-$o)nrzqxAVgwNb%JvmeA*{>TKIz;%usah;<lUmUlV*GHxJX{q!O-e?o-U0=#jB9yYxf-
%9f_^#31$GJwUj6Jj9rQs6YD;0#>;NB~l1>xPVq~FG0K`{(>0S9~XiC50SU3qSgr#$}1RJikO+3iul_zQ@2Mu-
#&^YRGzzeL#bEF|QaCQ#S4M^wE0Lg+_pEGK#}!9bSQMMZ8vR`iJqB(5;6vIS0G6d6it5wz1BloCYk3AY`%iPuwM>{bLhg84)9C*=?6{}y3u$7FNOWZNS
cGwMn78Sh5S6T?^888^kuC-zkh=%}Lyk2rVY5&s~<R*%T^yUns9hED=Z=E0l|CWy9p_Y695vcAt!m~+T)1dnUqI3mw*+Lu28;dm+Z?}DN`BeiXlF`g8s
C@t5I&4%Mm{GvTAZEO~*{#r}d^2o`lm2`$xklN4eA^L9nQr|$cUS}zHT2%P>#3IaIE|##u>(3)B<HOSxmP1MJjBK#h&7R;<RZ+jn<|WR#j-K-
g9X`#wD5K~lQPS07;e2!&qa>_hMjmS3)Gkz~v%GBr(xo>RG3D6ZJ9l&kUJtR}3NIHA<Oi<sit&I0<UG@GY(Sq^IswGj>6UYU4;>}JErVFX={_<$9dp!m
l^5Csb;5MP&Zygoo0f>;K6t(t2^s8+tB^uPaXS+#WU!Mez4hOZv&CR0B3PEgk+b9Bt-
#XarYe>3uOEF;#cvwD9)DVBHUeL;$cDaPK`kG!B*tiIkpwMr^_WE(V(5BuvtDbp3$-
@4V7nrJlN(m=W7;(g7fCZ%`F8x?%id_L59GTRJd^ZNuhO)4(JobB{V}>C+_R(Ffu{#015}hp<+jnP7Ah5KSFN#CY^xNSk4w~M6lz7IQ7D3mwa$|Ae5eS
?6T(dJt6FY0>!9ptXmTzzON~;Y4H`|MS!%Tbw#?G%A>gW4%GfJhBF$2PS6;dh+}XAPdRCmYu0n0|3-
#7JT0;L(lr04EP6OOQxolW#X;@$M2P;;wkPy>i{JDJG-A`F-GTln;+B2u9Jol!fpvfHnXlU(;4-
}w^0h$5W46r3>Gb=fF32WqZ1G#lD`Pl4DhSqRs1(GozFwN@{&k>uULG>mL8lt*%67Zz%TOt8Z%y*G2OE^2(3;W~e{_FsMH@rh++PJ#&L)25kOD(gc8;*
04pY^`{0Nk$sWt1(?%FSJ4i#sD^<bj1*@ILy1h*SD_y|?=v2{6uN?I8zqzbJ8z4#9hR<YbP|>Y5U^-Oo(GA@-
*hpK4Avf?UQ%zVy6og*}hqmF3<;4v|#$tn~5aQ?ony2AJ%;z?Q_f2gpUm=S@r3_Xf*_la#{(QM?Kw-
I>1%@;%YNNm&NIyz9@f6y<6w3V?oOmNxwqN;dgn(Az}dzUM-
}&XRH@`EO_}FWat`Yes#$)T|Uh_UK=W;3XFRx9$cg^yof1?8`(p{PhBVMdhzU42HzKKKbR4;CFUF-nwcZPqm;=uynu*=5!=K72Z#xoL*(jQ<+eR+VlYv
uGF}nK)TN2WHU!+q`<4E&_Bl(z3CofiW#c8lxyb8VZ6zh>5dcM@i`OL>Y!8q3&53M$;0C1F8(2W!kRw?90t6r)NY?bUCh11G;do5Pmzm-
(zgRA)Yse%%6UMjZ*0`TWY+J3@Wyjj&0+2uRmt~fD8h0`8M^fX%c#EtW$7-
xxvvfwQG5%9r(Bc5ssHB+(?Xv@x+Q(f;fk5<JAtuYxqDPCcjvY5azosXdRyQ+5i(YTJK&!&A_Td0?{ml0y=yE<gYe5Q^U}%d`zA}0T7&i5sT1qBXO>>G
k5hV`K5glB=H$}r85Pdik6Yoq@Uj)op+e=wPf)0=eX>I3rH@mnoIAcyIaEQsd~yZx!&ybHD=$^!8Yn(Kb5il~%sT4Tm#U)<e(>Pzi61-
&mFVYBF42ECTq%6+WeSC7eMeyJWxgX2{`$lDm-za_tXlnxFH@`Uul~MtLiKl`D*N(DRoTiXJg&U-Cp=y~ex$E{UO&EmKJbN-tHKZqeahpt(|pQ9sWZQJ
LY;Z2TK@HqQ7wP{<ZAh&Kg@CC<v+~f`x?c~<G)7X|DwsQ6TWD&AioLo!+Cm1H^2yh7tT;Va`zwH9=>thJF0%MPXFgPOL-5g=T-
*=w6M|IE>yIu^c|ng&8=o(^FuH>v8VYMUHX?uQ>j%dV181-v9?)2>l4%m_`BW29LMdFQK`3D+BF_^tZmmTTjbHF4+0en?Sh7CXSP^UJFin3NweO-
&&JJR(qwU~TK&+V@mJ7DE^TdA%EeNl#;2c0fKsLXwA?Cb=P+fU^!bMNI(>bvQfRkJH4RnS6h2>k7ObC0(@$8V0n0F4=1IBsSnT)$o~c~Dw^^@fY3wUk3
(!Zv8QgNY_Ne~2P!>DL@}?TaE$YRs&9=6H`+#ReTO=L6RIN9~5iWwsc&@rtX_ssDYPnD`WMG8PrBM#Yc1_dq0F8Pb?ES~u5}Ngm`cp6p))0BkQe{iaQH
-VhxLPk4wdLF;wkCcUJn0sU2teb9eBSeXaHUk+ENQQ)(U}#Dnus5K>={b3XjIB=ZI%A4lmX~fT)17RJ<-
nMnVyzw#rjizraa=e{iIoHJ*iiU+T~My9PwL8P&x0M;)_cDJnxt&HcVooqLS%(L{4|&v^kG+CjyAV2e%+FhjA1vb8xLCrEVrAQ$@TA3MQLmkw!Y?lnde
~l(Zbm63uv?eSeC1Hk4w%5KJ*&R8q{n$|KERg}3A-
oh7jfkG$47nS4SHd|Gdr&X1qMh5b>>O1K2?jOtRMT=Z2ry{quwdr5`=?U@SyJEB#o;Jh#QaS=2P3phkA?t9n6pXm10{=KJmFA8YarSm|k|6AkTY7OAJT
=+at4g1_W!1t9pz#N;$LQ$;m{j~RW$PBi*8O5LRzE!3coBo8C&7>5Yejr;fVuX__R%MOhX9I<+N(Nm)a_9OiE8&OpFJmU0HZ}g%1(0_1F)@%n@R-
ooL{a*ni!<`S-ZTJz
"""

DESCRIPTOR = descriptor_pool.Default().AddSerializedFile(zlib.decompress(base64.b85decode(_SERIALIZED.replace("\n", ""))))
if DESCRIPTOR is None:  # the pure Python implementation answers with nothing
    DESCRIPTOR = descriptor_pool.Default().FindFileByName("minicaffe/proto/caffe.proto")

for _name, _message in DESCRIPTOR.message_types_by_name.items():
    globals()[_name] = message_factory.GetMessageClass(_message)
for _name, _enum in DESCRIPTOR.enum_types_by_name.items():
    globals()[_name] = EnumTypeWrapper(_enum)
    globals().update((_value.name, _value.number) for _value in _enum.values)
